"""Runs for pages, and parts of a page."""

import copy
import re

from speculative.report.run import compare

HOSTILE = "</script><img src=x onerror=alert(1)> \0\x1b[31m\x7f\x9b\u202e\u2066 {{data}} \u2028 é"


PROMPT = "Once upon a time"


SAMPLED = {"temperature": 1, "seed": 4}  # its windows of 4 have 0, 1, 2, 3 and 4 accepted drafts


def run_of(pair, N=40, prompt=PROMPT, **options):
    return compare(pair.changed(**options), prompt, N, repeats=1).document


def origins_of(sample):
    return [origin for i in sample["iterations"] for origin in i["origins"]]


def with_prompt_and_text(run, text):
    """The same run, in which the prompt and the first token's text are this, and so are its likeliest tokens."""
    run = copy.deepcopy(run)
    run["prompt"]["text"] = text
    for name in ("autoregressive", "speculative"):
        first = run[name]["samples"][0]["iterations"][0]
        first["pieces"][0] = text
        first["text"] = "".join(first["pieces"])
    run["vocabulary"] = dict.fromkeys(run["vocabulary"], text)
    run["options"] |= {"stop": text, "prompt": text}
    return run


POLICY = ["default-src 'none'", "img-src data:", "style-src '#'", "script-src '#'"]


def policy_of(html):
    """The rules of a page's policy, with # for a hash: a browser uses no script and no style that has another one."""
    policy = re.search(r'Content-Security-Policy"\s+content="([^"]*)"', html)[1]
    return re.sub(r"sha256-[\w+/=]+", "#", policy).split("; ")
