def merge(intervals):
    merged = []
    for pair in intervals:
        if merged and pair[0] <= merged[-1][1]:
            merged[-1][1] = pair[1]
        else:
            merged.append(pair)
    return merged
