"""The texts that are continued: the flags that say which, and the prompts that they stand for."""

from speculative.support import arguments
from speculative.support.arguments import Flag
from speculative.support.errors import UserError
from speculative.support.options import Options
from speculative.support.texts import is_jsonl, read_prompts, read_text

FLAGS = (
    Flag(
        "prompt_file",
        arguments.path,
        "read the prompt from a file; --prompt_file=- is standard input",
        excludes=("prompt", "unconditional"),
    ),
    Flag(
        "unconditional",
        arguments.switch,
        'no prompt, as --prompt "": start from <|endoftext|>',
        False,
        excludes=("prompt",),
    ),
    Flag("n_samples", arguments.integer(1), "decode this many times, each time with a seed of its own", 1, live=True),
)


def choose_prompts(o: Options) -> list[str]:
    """One prompt. With --batch B, all of a file's, which has to have B or more; or one prompt, B times.

    With --interactive and --serve, where prompts come later, none.
    """
    if o.interactive or o.serve is not None:
        return []
    if o.prompt_file and (o.batch > 1 or is_jsonl(o.prompt_file)):
        at_most = None if o.batch > 1 else 1
        prompts = read_prompts(o.prompt_file, at_most)
        if len(prompts) < o.batch:
            raise UserError(f"--batch {o.batch} needs as many prompts, and {o.prompt_file} has {len(prompts)}")
        return prompts
    if o.unconditional:
        return [""] * o.batch
    prompt = read_text(o.prompt_file, "prompt") if o.prompt_file else o.prompt
    return [prompt] * o.batch
