#!/usr/bin/env bash
# Every figure of StoBatch that runs here (MNIST), and its one table, into OUT; the command behind results/stobatch-*.json.
#   TWINPROOF_DATA=... benchmarks/reproduce_stobatch.sh OUT [options of `twinproof reproduce`]
# Each stands behind those whose models it shares; numbers are models made anew for each seed. Made before: not made again.
set -euo pipefail
out=$1
shift
names=(
  stobatch-fig2  # 28: seven lines at four budgets; 20 of them are those of hgm-fig5
  stobatch-fig4  # 0: the models at epsilon 0.2
  stobatch-fig6  # 1: the models at epsilon 1, and PixelDP of hgm-fig3
  stobatch-mnist # 0: both variants of StoBatch in one table
)
for name in "${names[@]}"; do
  python3 -m twinproof reproduce "$name" --out "$out" "$@"
done
