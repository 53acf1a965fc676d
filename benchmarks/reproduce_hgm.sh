#!/usr/bin/env bash
# All figures of the first paper that run on MNIST, into OUT; the command behind results/hgm-*.json and results/securesgd-mnist.json.
#   TWINPROOF_DATA=... benchmarks/reproduce_hgm.sh OUT [options of `twinproof reproduce`]
set -euo pipefail
out=$1
shift
for name in securesgd-mnist hgm-fig3 hgm-fig5; do
  python3 -m twinproof reproduce "$name" --out "$out" "$@"
done
