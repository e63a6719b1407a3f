"""From a session and the steps of its decoders to the record of the run.

measuring.py, which is called from here, also times the session's models.
"""

import platform
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from speculative.blog.encoder import Encoder
from speculative.checkpoints.names import HPARAMS
from speculative.drafters.user import UserRule
from speculative.engines import memory
from speculative.engines.network import common_prefix
from speculative.engines.system import lines, n_cores
from speculative.report import ending
from speculative.report.advice import without_wrong
from speculative.report.figures import figures
from speculative.report.measuring import measure
from speculative.report.record import (
    DecoderRecord,
    Difference,
    Figures,
    Machine,
    Model,
    PackSaves,
    Prompt,
    RuleUsed,
    RunRecord,
)
from speculative.report.words import words_of
from speculative.rules import Rule
from speculative.run.greedy import greedy_difference
from speculative.run.load import fast_drafter
from speculative.run.options import FIELDS, Options
from speculative.run.session import Session
from speculative.run.steps import TextStep
from speculative.support.terminal import without_secrets

Texts = list[list[int]]  # the tokens of each

PACK_SECONDS = 2  # seconds of reading that packs would save: if they are more, the ending says so

BLOG_TEXT = (  # 40 tokens, which the blog's run printed after its prompt, with the official 1558M
    " so powerful that they would be able to think like humans.\n\nIn the 1950s, he proposed a way to build a computer "
    'that could think like a human. He called it the "T'
)


def make_record(
    session: Session, prompts: Sequence[str], records: Sequence[DecoderRecord], **options: object
) -> RunRecord:
    """Return the record of a run.

    prompts: one for each text. records: of both decoders, or of the one that has run. options: those that differ from
    the session's.
    """
    decoders = {record.name: record for record in records}
    plan = session.plan
    inputs = [session.reader.ids_of(prompt) for prompt in prompts]
    return RunRecord(
        options=public_options(session, **options),
        machine=machine(session),
        models=models_of(session, "speculative" in decoders),
        roles=plan.roles[1:],
        rule=rule_of(plan.rule),
        timed=plan.depends_on_times,
        fast=fast_drafter(session.options, session.models, session.prompts) if "draft" in plan.roles else None,
        prompts=[*map(Prompt, prompts, inputs)],
        autoregressive=decoders.get("autoregressive"),
        speculative=decoders.get("speculative"),
        figures=run_figures(session, inputs, decoders),
        difference=difference(session, inputs, records),
        blog_text=first_unlike_the_blogs(session, inputs, records[0].tokens),
        vocabulary=vocabulary(inputs, records, session.encoder),
        packable=packable(session),
    )


# ---- The parts of the run --------------------------------------------------------------------------------------------


def public_options(session: Session, **options: object) -> Options:
    """Return all options, as a file may have them: those that load_pair does not take with their defaults, and without
    an address's password. options: those that differ from the session's."""
    o = Options(**(vars(session.options) | options))
    return replace(o, source=without_secrets(o.source))


def machine(session: Session) -> Machine:
    """Return the names and versions of the machine, and the engine on it."""
    return Machine(
        platform=platform.platform(),
        processor=processor(),
        cpus=n_cores(),
        python=platform.python_version(),
        numpy=np.__version__,
        engine=session.options.engine,
        engine_words=session.engine.words(),
        exact=session.exact,
        peak_bytes=memory.peak(),
        **session.engine.facts(),
    )


def processor() -> str:
    """Return the CPU's name."""
    names = [line.partition(":")[2].strip() for line in lines("proc/cpuinfo") if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def models_of(session: Session, drafted: bool = True) -> list[Model]:
    """Return the networks that ran. drafted: False for the autoregressive decoder alone, which needs the target."""
    roles = session.plan.network_roles if drafted else ["target"]
    models = []
    for role in roles:
        spec = session.models.spec(role)
        network = session.models[role]
        kernels = session.engine.kernel_words(network)
        models.append(Model(role, spec.size, spec.dtype, network.weight_bytes, spec.hparams.get("stand_in"), kernels))
    return models


def line_of_session(session: Session) -> str:
    """Return the parts of a run to come: the engine, and each model with its weight format."""
    return ending.what_runs(session.engine.words(), models_of(session), session.options)


def rule_of(rule: Rule) -> RuleUsed:
    """Return the rule. Of a user's function it is said whether it claims to be lossless, and its law, if
    that was asked."""
    claim = None
    if isinstance(rule, UserRule):
        verdict = getattr(rule.function, "verdict", None)
        law = verdict.words.splitlines()[0] if verdict else f"speculative.law({rule.name}) tells if it does."
        says = "claims" if rule.lossless else "does not claim"
        claim = f"The rule {rule.name} {says} to keep the target's distribution. {law}"
    words = words_of(rule.kind, rule.number)._asdict()
    number = rule.number if rule.letter else None
    return RuleUsed(name=rule.name, lossless=rule.lossless, number=number, **words, claim=claim)


def packable(session: Session) -> PackSaves | None:
    """Return the seconds that --pack would save, the first time that it is asked."""
    unpacked, seconds = session.models.take_unpacked()
    return PackSaves(seconds, sum(spec.n_bytes for spec in unpacked)) if seconds > PACK_SECONDS else None


# ---- The results -----------------------------------------------------------------------------------------------------


def run_figures(session: Session, inputs: Texts, decoders: dict[str, DecoderRecord]) -> Figures | None:
    """Return the figures, with predictions if both decoders have run. None if nothing could be drafted."""
    if "speculative" not in decoders:
        return None
    speculative = decoders["speculative"]
    measured = measure(session, inputs, speculative) if len(decoders) == 2 else None
    f = figures(decoders.get("autoregressive"), speculative, measured, session.plan.rule.blocks)
    return without_wrong(f, session.options)


def difference(session: Session, inputs: Texts, records: Sequence[DecoderRecord]) -> Difference | None:
    """Return where two greedy texts differ. None if they are equal, and if differences are no surprise."""
    plan = session.plan
    if len(records) < 2 or isinstance(plan.rule, UserRule) or not plan.is_greedy:
        return None
    return greedy_difference(session, inputs, [record.tokens for record in records])


def first_unlike_the_blogs(session: Session, inputs: Texts, texts: Texts) -> int | None:
    """Return the first token that is not the one that the blog printed, from 1; 0 if all are equal. None if this is not
    the blog's run, with a target of that name. texts: the new tokens after each of the inputs."""
    target = session.models.spec("target")
    any_weights = {"stand_in": None}
    is_like_it = target.hparams | any_weights == HPARAMS["1558M"] | any_weights
    if not session.plan.is_greedy or not is_like_it or (target.size, target.dtype) != ("1558M", "float32"):
        return None
    encode = session.encoder.encode
    blogs = encode(BLOG_TEXT)
    if inputs != [encode(FIELDS["prompt"].default)] or len(texts[0]) != len(blogs):
        return None
    n_equal = common_prefix(texts[0], blogs)
    return 0 if n_equal == len(blogs) else n_equal + 1


def vocabulary(inputs: Texts, records: Sequence[DecoderRecord], encoder: Encoder) -> dict[int, str]:
    """Return the texts of the tokens of all prompts, and of those that a page shows beside the text: as bytes, \\xNN if
    a part of a character."""
    tokens: set[int] = set().union(*inputs)
    for record in records:
        tokens.update(*map(tokens_beside, record.steps))
    return names_of(tokens, encoder)


def names_of(tokens: Iterable[int], encoder: Encoder) -> dict[int, str]:
    """Return the text of each token: of a part of a character its bytes, as \\xNN."""
    return {token: encoder.id_to_bytes[token].decode("utf-8", "backslashreplace") for token in sorted(tokens)}


def tokens_beside(step: TextStep) -> set[int]:
    if step.tree:
        return {*step.tree["tokens"]}
    if not step.details:
        return set()
    tokens = {*step.details["drafts"]}
    for draw in (*step.details["tested"], step.details["own"]):
        if draw:
            tokens |= {token for token, *_ in draw["top"]}
    return tokens
