"""The texts that are continued."""

from speculative.options import Options
from speculative.support.errors import UserError
from speculative.support.texts import is_jsonl, read_prompts, read_text


def choose_prompts(o: Options) -> list[str]:
    """One prompt. With --batch B, all of a file's, which has to have B or more; or one prompt, B times.

    With --interactive and --serve, whose prompts come later, none. Raises UserError.
    """
    if o.interactive or o.serve is not None:
        return []
    if not o.prompt_file:
        return [o.prompt] * o.batch
    if o.batch == 1 and not is_jsonl(o.prompt_file):
        return [read_text(o.prompt_file, "prompt")]
    prompts = read_prompts(o.prompt_file, None if o.batch > 1 else 1)
    if len(prompts) < o.batch:
        raise UserError(f"--batch {o.batch} needs at least {o.batch} prompts, and {o.prompt_file} has {len(prompts)}")
    return prompts
