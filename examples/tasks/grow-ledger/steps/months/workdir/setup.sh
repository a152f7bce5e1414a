# What came in since is added to the books, once.
set -eu
cat more.csv >> ledger.csv
rm more.csv setup.sh
