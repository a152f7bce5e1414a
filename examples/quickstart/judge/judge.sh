# The reward of a round: the share of its gauges whose level stands at its place in the log.
# The levels are arguments; the agent's log is read from the workspace it left.
right=0
[ -f log.txt ] && exec < log.txt || exec < /dev/null
for level in "$@"; do
    noted=
    read -r noted
    [ "$noted" = "$level" ] && right=$((right + 1))
done
thousandths=$((1000 * right / $#))
printf '%d.%03d\n' $((thousandths / 1000)) $((thousandths % 1000)) > "$GYRE_RESULTS/reward.txt"
