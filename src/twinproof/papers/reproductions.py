"""All tables and figures that can be made again, by name."""

from __future__ import annotations

from collections.abc import Mapping

from twinproof.papers.certified_under_attack import CertifiedUnderAttack
from twinproof.papers.contest import SECURESGD, STOBATCH
from twinproof.papers.conventional_against_size import ConventionalAgainstSize
from twinproof.papers.conventional_under_attack import ConventionalUnderAttack
from twinproof.papers.dpcert.certified_curves import CertifiedCurves, Group, combinations_group, copies_group, table_curves
from twinproof.papers.dpcert.fgsm import Fgsm
from twinproof.papers.dpcert.methods import FASHION_MNIST
from twinproof.papers.dpcert.methods import MNIST as DPCERT_MNIST
from twinproof.papers.dpcert.metric_figures import MetricAgainstRadius, MetricHistograms, MetricSplits
from twinproof.papers.dpcert.radius_distribution import RadiusDistribution
from twinproof.papers.dpcert.sensitivity import CLIPPING_NORMS, LEARNING_RATES, Sensitivity
from twinproof.papers.dpcert.table2 import Table2
from twinproof.papers.methods import CIFAR10, CIFAR10_NOT_PRIVATE, FEW_SIZES, MNIST, MNIST_NOT_PRIVATE
from twinproof.papers.reproduction import Reproduction
from twinproof.papers.securesgd_mnist import SecureSgdMnist
from twinproof.papers.sigma_curves import SigmaCurves
from twinproof.papers.stobatch_certified import StoBatchCertified
from twinproof.papers.stobatch_mnist import StoBatchMnist

REPRODUCTIONS: Mapping[str, Reproduction] = {
    "hgm-fig1": SigmaCurves(),
    "hgm-fig2": CertifiedUnderAttack(CIFAR10_NOT_PRIVATE, largest=0.6),
    "hgm-fig3": CertifiedUnderAttack(MNIST_NOT_PRIVATE, largest=0.3),
    "hgm-fig4": ConventionalUnderAttack(CIFAR10, SECURESGD, (2.0, 4.0, 6.0, 8.0, 10.0), sizes=(0.2,), caption_size=0.2),
    "hgm-fig5": ConventionalUnderAttack(MNIST, SECURESGD, (0.2, 0.5, 1.0, 2.0), sizes=FEW_SIZES, caption_size=0.1),
    "securesgd-mnist": SecureSgdMnist(),
    "stobatch-fig2": ConventionalUnderAttack(MNIST, STOBATCH, (0.2, 0.5, 1.0, 2.0), sizes=(0.2,), caption_size=0.2),
    "stobatch-fig4": ConventionalAgainstSize(MNIST, STOBATCH, epsilon=0.2),
    "stobatch-fig6": StoBatchCertified(),
    "stobatch-mnist": StoBatchMnist(),
    "dpcert-table2": Table2(),
    "dpcert-table3": Sensitivity("learning_rate", "learning rate", LEARNING_RATES),
    "dpcert-table4": Sensitivity("clip_norm", "clipping norm", CLIPPING_NORMS),
    "dpcert-fig4": CertifiedCurves((combinations_group(), copies_group((2, 4, 6, 8))), grounds=(FASHION_MNIST,), sigmas=(0.5,)),
    "dpcert-fig5": MetricHistograms(DPCERT_MNIST, sigma=0.5),
    "dpcert-fig6": MetricAgainstRadius(DPCERT_MNIST, sigma=0.5),
    "dpcert-fig7": CertifiedCurves((Group("", table_curves()),)),
    "dpcert-fig8": CertifiedCurves((combinations_group(),)),
    "dpcert-fig9": CertifiedCurves((copies_group((2, 4, 6, 8)),)),
    "dpcert-fig10": MetricHistograms(DPCERT_MNIST, sigma=0.25),
    "dpcert-fig11": MetricHistograms(DPCERT_MNIST, sigma=1.0),
    "dpcert-fig12": MetricHistograms(FASHION_MNIST, sigma=0.25),
    "dpcert-fig13": MetricHistograms(FASHION_MNIST, sigma=0.5),
    "dpcert-fig14": MetricHistograms(FASHION_MNIST, sigma=1.0),
    "dpcert-fig15": RadiusDistribution(),
    "dpcert-fig16": Fgsm(),
    "dpcert-fig17": MetricSplits(DPCERT_MNIST, sigma=0.5, metric="lipschitz_logits"),
    "dpcert-fig18": MetricSplits(DPCERT_MNIST, sigma=0.5, metric="gradient_norm"),
    "dpcert-fig19": MetricSplits(DPCERT_MNIST, sigma=0.5, metric="hessian_norm"),
}
