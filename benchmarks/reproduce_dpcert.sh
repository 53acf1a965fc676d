#!/usr/bin/env bash
# Every table and figure of DP-CERT that runs here, into OUT; the command behind results/dpcert-*.json.
#   TWINPROOF_DATA=... benchmarks/reproduce_dpcert.sh OUT [options of `twinproof reproduce`]
# Each stands behind those whose models it shares; numbers are models made anew for each seed. Made before: not made again.
# Metrics go on with the run directories in OUT/cells, which must still be there: cell.json alone is enough for all other figures.
set -euo pipefail
out=$1
shift
names=(
  dpcert-table2 # 42: seven published rows, the house recipe and the row without privacy, two data sets, three sigmas
  dpcert-fig7   # 0: the curves of Table 2
  dpcert-fig15  # 0: distribution of its radii
  dpcert-fig16  # 0: FGSM on its networks
  dpcert-table3 # 4: learning rates
  dpcert-table4 # 8: clipping norms
  dpcert-fig8   # 24: consistency and PSAC beside DP-Gaussian and DP-SmoothAdv
  dpcert-fig9   # 24: 0 to 8 noisy copies
  dpcert-fig4   # 0: both on Fashion-MNIST at sigma 0.5
  dpcert-fig5   # 0, and 8 measured image by image, on the runs of Table 2: MNIST, sigma 0.5
  dpcert-fig6   # 0: the same against the radius
  dpcert-fig17  # 0: the same on both sides of a radius; Lipschitz constants
  dpcert-fig18  # 0: gradient norms
  dpcert-fig19  # 0: Hessian norms
  dpcert-fig10  # 0, and 5 measured: MNIST, sigma 0.25
  dpcert-fig11  # 0, and 5 measured: MNIST, sigma 1
  dpcert-fig12  # 0, and 8 measured: Fashion-MNIST, sigma 0.25
  dpcert-fig13  # 0, and 5 measured: Fashion-MNIST, sigma 0.5
  dpcert-fig14  # 0, and 5 measured: Fashion-MNIST, sigma 1
)
for name in "${names[@]}"; do
  python3 -m twinproof reproduce "$name" --out "$out" "$@"
done
