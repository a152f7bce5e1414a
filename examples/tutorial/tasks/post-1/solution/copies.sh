for box in a b c d e f; do
    mkdir -p "boxes/$box" && cp inbox/*.json "boxes/$box/"
done
