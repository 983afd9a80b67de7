"""pFedAvg: every site fine-tunes the final model for itself, and is scored with that.

The baseline of Chen et al., "FRAug: Tackling Federated Learning with Non-IID Features via Representation
Augmentation" ("FedAvg with local model personalization")::

    w ← the selected round's model,    then at site k:  w_k ← w after ``epochs`` of plain local training

Choices: the paper gives no length; one epoch, with the task's optimiser starting anew. Training up to there is that of
the method that combines, and `results.final.best` scores its model; `results.final.personal` scores w_k. The
fine-tuned weights stay at the site and are not kept. The round is selected before fine-tuning.
"""

from __future__ import annotations

from pydantic import Field

from fedshift.methods import base
from fedshift.schema.strict import Strict


class Config(Strict):
    """Options of pFedAvg."""

    epochs: int = Field(default=1, ge=1)


class Client(base.Client[Config]):
    """Plain local training, and some more after the last round."""

    def fine_tune(self) -> int:
        """``epochs``."""
        return self.config.epochs
