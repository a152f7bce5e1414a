#!/bin/bash
set -euo pipefail
cat > planner.py <<'END'
import heapq


def _whole(plan):
    whole = {name: list(needs) for name, needs in plan.items()}
    for needs in plan.values():
        for name in needs:
            whole.setdefault(name, [])
    return whole


def _users(whole):
    users = {name: [] for name in whole}
    for name, needs in whole.items():
        for one in set(needs):
            users[one].append(name)
    return users


def _circle(whole, left):
    seen, name = {}, min(left)
    path = []
    while name not in seen:
        seen[name] = len(path)
        path.append(name)
        name = min(one for one in whole[name] if one in left)
    circle = path[seen[name]:]
    first = circle.index(min(circle))
    circle = circle[first:] + circle[:first]
    return " -> ".join([*circle, circle[0]])


def order(plan):
    whole = _whole(plan)
    users, waits = _users(whole), {name: len(set(needs)) for name, needs in whole.items()}
    ready = [name for name, count in waits.items() if not count]
    heapq.heapify(ready)
    found = []
    while ready:
        name = heapq.heappop(ready)
        found.append(name)
        for user in users[name]:
            waits[user] -= 1
            if not waits[user]:
                heapq.heappush(ready, user)
    if len(found) < len(whole):
        raise ValueError(_circle(whole, set(whole) - set(found)))
    return found


def _reached(graph, names):
    found, waiting = set(), list(names)
    while waiting:
        for one in graph[waiting.pop()]:
            if one not in found:
                found.add(one)
                waiting.append(one)
    return found


def needed(plan, name):
    return sorted(_reached(_whole(plan), [name]))


def stale(plan, changed):
    ordered, users = order(plan), _users(_whole(plan))
    touched = _reached(users, changed) | set(changed)
    return [name for name in ordered if name in touched]


def layers(plan):
    whole, depth, found = _whole(plan), {}, []
    for name in order(plan):
        depth[name] = max((depth[one] + 1 for one in whole[name]), default=0)
        if depth[name] == len(found):
            found.append([])
        found[depth[name]].append(name)
    return [sorted(one) for one in found]
END
