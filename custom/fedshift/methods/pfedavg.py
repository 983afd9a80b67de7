"""pFedAvg: every site fine-tunes the final model and is evaluated with its own copy.

The baseline of Chen et al., "FRAug: Tackling Federated Learning with Non-IID Features via Representation
Augmentation", arXiv 2022 ("FedAvg with local model personalization")::

    w ← the selected round's model,    then at site k:  w_k ← w after ``epochs`` of plain local training

`results.final.best` holds the scores of w, `results.final.personal` those of w_k. w is trained by the method that
combines.

Choices: the paper gives no length; the default is one epoch, with a new optimiser of the task's type. The round is
selected before fine-tuning. The fine-tuned weights stay at the site and are not saved.

When: a baseline for personal models; sites with enough images of their own.
"""

from __future__ import annotations

from pydantic import Field

from fedshift.methods import base
from fedshift.schema.strict import Strict


class Config(Strict):
    """Options of pFedAvg.

    ``epochs``: of fine-tuning, with a fresh instance of the task's optimiser.
    """

    epochs: int = Field(default=1, ge=1)


class Client(base.Client[Config]):
    """Plain local training, and fine-tuning after the last round."""

    def fine_tune(self) -> int:
        return self.config.epochs
