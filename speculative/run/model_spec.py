"""What the small files of a model say: its settings and its tokens."""

from typing import NamedTuple

from speculative.blog.encoder import Encoder
from speculative.checkpoints.shapes import checkpoint_shapes
from speculative.engines.formats import model_bytes
from speculative.engines.vocabulary import map_vocabulary
from speculative.support.errors import UserError


class ModelSpec(NamedTuple):
    """A model that is to be loaded, as its small files describe it."""

    role: str  # "target", "draft", or the weight format of a quantized copy of the target
    size: str  # the model's name
    folder: str  # "" for a user's function, which has no weights
    dtype: str
    encoder: Encoder
    hparams: dict

    @property
    def n_ctx(self) -> int:
        """The tokens of its context."""
        return self.hparams["n_ctx"]

    @property
    def n_bytes(self) -> int:
        """The bytes of its weights."""
        return model_bytes(self.dtype, checkpoint_shapes(self.hparams))

    def __str__(self) -> str:
        return f"the {self.role} {self.size}"

    def drafting_for(self, target: "ModelSpec") -> "ModelSpec":
        """The same with the hparam by which a draft of another vocabulary takes the target's ids. Raises UserError if
        there is no such way."""
        if self.encoder is target.encoder:
            return self
        vocabulary_map = map_vocabulary(target.encoder, self.encoder)
        if vocabulary_map is None:
            raise UserError(
                f"{self.size} and {target.size} have different vocabularies, so one cannot draft for the other"
            )
        if vocabulary_map.n_shared == target.encoder.n_vocab == self.encoder.n_vocab:
            return self
        return self._replace(hparams=self.hparams | {"vocabulary_map": vocabulary_map})
