# The reward of a round of letters: the share of its jobs that stand in the workspace as done.
# An argument is a job: PATH=STATE for each path it is about, which is the lines of a file, each
# with a comma behind it, a slash for a folder, and nothing for a path that must be gone.
stands() {
    if [ -d "$1" ]; then state=/
    elif [ -f "$1" ]; then state=$(tr '\n' ',' < "$1")
    else state=
    fi
    [ "$state" = "$2" ]
}
done=0
for job in "$@"; do
    right=1
    for check in $job; do
        stands "${check%%=*}" "${check#*=}" || right=0
    done
    done=$((done + right))
done
thousandths=$((1000 * done / $#))
printf '%d.%03d\n' $((thousandths / 1000)) $((thousandths % 1000)) > "$GYRE_RESULTS/reward.txt"
