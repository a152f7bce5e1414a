#!/bin/bash
# Half of the work, for a score in between.
set -euo pipefail
cd photos; mv IMG_1.JPG photo-001.jpg; mv IMG_7.JPG photo-007.jpg; cp IMG_12.JPG photo-012.jpg
