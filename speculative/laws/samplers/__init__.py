"""The check of somebody's sampler: are its texts the target's, exactly?

The files in the order of reading, each before those that use it:

    rows          random rows of probabilities, of several kinds
    cases         random models of a few tokens, whose laws can be written down
    outputs       what a model returns to somebody who works with PyTorch
    interfaces    the models in the forms that people's models have
    results       the ids in whatever a function returns
    functions     somebody's function, whose parameters are told by their names
    rule_forms    rules as the paper, Hugging Face and vLLM have them, as rule(proposal, q, rng)
    decoders      how a loop, a drafter, sample(p) or a rule decodes a text
    sampler       FORMS, and the decoders that a function's parameters ask for
    stand_ins     what is put in the place of a generator, its class or its method
    libraries     whose random numbers are left alone
    places        where the stand-ins are put, and everything is given back
    guard         errors and endless loops of somebody's code
    texts         the law of a decoder's texts
    salted        real random numbers, others in each text
    drawn         what cannot be followed: texts are drawn, and counted
    mistakes      the usual ones, in a loop of ours
    causes        which of them gives the same laws
    words         of a verdict
    check         speculative.law, and the command

The words, beside those of speculative/laws:

    case          a pair of random models, with N and K
    line          of cases: the same lengths and the same kind, but different models
    interface     how a model takes a text, and what it returns
    form          the parameters by which a function is recognised
    decoder       decode(draft, target, case, rng) -> the tokens after the prompt
    sampler       somebody's function, as the decoders that its form allows
    salt          the number of a text that is drawn, which is mixed into every seed
    left out      what a sampler cannot do, as a vocabulary, and the check does without; the verdict says so
"""
