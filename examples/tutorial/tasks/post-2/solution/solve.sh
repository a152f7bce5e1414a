for letter in inbox/*.json; do
    box=$(cut -d '"' -f 4 "$letter")
    mkdir -p "boxes/$box" && mv "$letter" "boxes/$box/"
done
