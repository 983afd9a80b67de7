"""Landmarks: bring every scan's histogram to one shape, which is the mean of all sites' scans.

Nyul, Udupa & Zhang, "New Variants of a Method of MRI Scale Standardization", IEEE TMI 19(2), 2000, as a federation.
A volume's landmarks l_i are quantiles of its intensities. Sites send their mean once, the server averages it to the
standard s, and each volume is mapped to it, linearly between neighbouring landmarks, in training and in prediction::

    z_i = a + (l_i − l_i,first) / (l_i,last − l_i,first) · (b − a)       the volume's ends at a and b
    m^k = 1/n_k Σ_i z_i                   at site k, over its n_k training volumes
    s   = Σ_k n_k m^k / Σ_k n_k           which is the mean over all volumes of all sites
    x   ← P_{l_i → s}(x)                  P_{u → v}: piecewise linear, with P(u_j) = v_j

A scan at a new site is mapped like all others: it needs its own landmarks, and s is in the model file.

The map is taken in two steps, P_{l_i → s} = P_{c → s} ∘ P_{l_i → c}, with a scale c that is the same in every job
(`fedshift.runtime.grids.SCALE`). The first needs the whole volume and is ``data.normalise: landmarks``, which this
method needs; the second is one function for all images of all sites, and is done here. So scans have histograms of one
shape without this method too, that of a normal distribution. With it the shape is the scans' own, and so the contrast
between tissues stays as it is on average.

Deviations from the paper:

- The landmarks are the percentiles 1, 10, 20 … 90, 99 of all voxels (with ``data.nonzero`` of all that are not 0). The
  paper takes the deciles of what is brighter than the mean. Quantiles of all voxels go along with every monotone change
  of a scan's intensities, a mean does not, and on the prostate they bring the sites' histograms much closer
  (``benchmarks/results/landmarks.json``).
- Augmentation of intensities comes between the two steps, and so does resampling to the network's grid.
- Noise that a site's policy puts on m^k can change the order of neighbours; the server sorts them.

When: MR scans of the same kind whose contrast and brightness differ between scanners and sites. Where there is more air
than body, cut it away or set it to 0 with ``data.nonzero``, or the lower landmarks are the air's. Not for images with a
unit, such as CT.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from fedshift.methods import base
from fedshift.methods.shared.aggregation import sample_fractions
from fedshift.methods.shared.features import over_space
from fedshift.runtime.grids import INNER, SCALE
from fedshift.schema.errors import DataError
from fedshift.schema.messages import Arrays
from fedshift.schema.strict import Strict

SENT, STANDARD = "means", "standard"


class Config(Strict):
    """No options."""


def to_standard(x: Tensor, standard: Tensor) -> Tensor:
    """Images (B, C, *spatial) on `SCALE` to landmarks ``standard`` (S, 9): P_{c → s}, the same for all of a sequence.

    Channels are the sequences, each with its neighbouring slices. With s = c nothing changes, to the bit.
    """
    ends = standard.new_tensor([SCALE[0], SCALE[-1]]).expand(len(standard), 2)
    known = torch.cat([ends[:, :1], standard, ends[:, 1:]], 1)
    scale = standard.new_tensor(SCALE)
    more = known.diff() / scale.diff() - 1  # by how much a segment is steeper than that of the scale
    bends = torch.cat([more[:, :1], more.diff()], 1).repeat_interleave(x.shape[1] // len(standard), 0).to(x)
    mapped = x + over_space(bends[:, 0], x) * (x - SCALE[0])
    for number, place in enumerate(SCALE[1:-1], start=1):
        mapped = mapped + over_space(bends[:, number], x) * (x - place).clamp_min(0)
    return mapped


class Client(base.Client[Config]):
    """Sends the mean of its volumes' landmarks once; maps images to the standard."""

    per_sample = frozenset({"inputs"})
    needs = (base.Rule("volumes on histogram landmarks"),)
    clashes = (base.Rule("normalises images", "takes images as the task has normalised them"),)

    def up(self, net: nn.Module) -> dict[str, base.ArraySpec]:
        """m^k, (S, 9)."""
        return {
            SENT: base.ArraySpec(
                ("sequences", INNER),
                "float64",
                "once",
                low=SCALE[0],
                high=SCALE[-1],
                reveals="average shape of the histogram of the site's training scans, as nine quantiles of each "
                "sequence between the darkest and the brightest (of its only scan, if it has one)",
                kind="statistics",
                mean_of="intensities",
                averaged="values",
            )
        }

    def statistics(self, data: base.TrainingSamples, ctx: base.Context) -> Arrays:
        """m^k; nothing of images that are no volumes, as those given for a prediction."""
        if data.landmarks is None:
            return {}
        if not len(data.landmarks):
            raise DataError("no-images", f"site {ctx.run.site}: no scan to measure landmarks on")
        return {SENT: data.landmarks.mean(0)}

    def receive(self, arrays: Arrays, ctx: base.Context) -> None:
        self._standard = torch.from_numpy(arrays[STANDARD])

    def inputs(self, x: Tensor, ctx: base.Context, *, training: bool) -> Tensor:
        return to_standard(x, self._standard)


class Server(base.Server[Config]):
    """Averages the sites' landmarks once and sends the standard to every site."""

    def down(self, net: nn.Module) -> dict[str, base.ArraySpec]:
        spec = Client(self.config).up(net)[SENT]
        return {STANDARD: base.ArraySpec(spec.shape, spec.dtype, reveals=f"the mean of all sites' `{SENT}`")}

    def receive(self, updates: Sequence[base.SiteUpdate], ctx: base.ServerContext) -> None:
        if ctx.round == 0:
            parts = zip(sample_fractions(updates), updates, strict=True)
            mean = sum(part * update.arrays["landmarks"][SENT] for part, update in parts)
            self.state = {STANDARD: np.sort(mean, axis=1)}

    def broadcast(self, ctx: base.ServerContext) -> Arrays:
        return self.state
