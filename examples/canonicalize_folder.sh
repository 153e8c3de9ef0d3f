#!/usr/bin/env bash
# Write every image of a folder with its pose removed, and print its class and pose.
#   bash examples/canonicalize_folder.sh MODEL FOLDER OUT
set -euo pipefail
et predict "$1" "$2" --canonical-out "$3"
