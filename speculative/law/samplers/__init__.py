"""The check of somebody's sampler: are its texts the target's, exactly?

mine.py holds the blog's loop, but with `if True:` in the place of the test, so that every draft is accepted:

    check.law                      follows it, and puts what was found into words
    following.follow               replaces its random numbers, and calls the next two, and causes.cause_of at the end
    Sampler.choose_decoder         its parameters are the blog's; the models give rows, as in the blog
    following.follow_case          for each case; here 3 tokens, the prompt [1, 0, 0, 1], N = 1, K = 1, and after it
                                   p = [0.00412 0.00578 0.99], the draft's, q = [0.643 0.356 0.00128], the target's
    texts.law_of_texts             runs it on 9 paths (a draft and a bonus token, which does not count any more):
                                   {(0,): 0.00412, (1,): 0.00578, (2,): 0.99}, which is p
    Case.law                       {(0,): 0.643, (1,): 0.356, (2,): 0.00128}, which is q: the target's rows are
                                   multiplied along each text, and nothing is sampled at all
    paths.distance                 0.989, far above EXACT = 1e-6: not lossless
    causes.cause_of                of the loops with the usual mistakes this one alone has the same laws in a few cases
                                   of each line: every draft is accepted
    verdicts.exact_verdict         shows this case: of the smallest line, and there the furthest from the target's law
    words.counterexample           The text [2] should have probability 0.00128, and has 0.99.

The files in the order of reading, in four groups; the last three groups may be skipped at first. A file may use one of
a later group.

How the check knows:

    rows          random rows of probabilities, of several kinds
    cases         random models of a few tokens, whose laws can be written down
    texts         the law of a decoder's texts
    check         speculative.law, and the command
    following     the laws of the cases
    verdicts      whether they are the target's
    words         of a verdict
    mistakes      the usual ones, in a loop of ours
    causes        which of them gives the same laws

What people's samplers look like:

    interfaces    the models in the forms that people's models have
    outputs       what a model returns to somebody who works with PyTorch
    functions     somebody's function, whose parameters are told by their names
    decoders      how a loop, a drafter, sample(p) or a rule decodes a text
    rule_forms    rules as the paper, Hugging Face and vLLM have them, as rule(proposal, q, rng)
    results       the ids in whatever a function returns
    sampler       FORMS, and the decoders that a function's parameters ask for

How their random numbers are replaced:

    stand_ins     what is put in the place of a generator, its class or its method
    libraries     whose random numbers are left alone
    places        where the stand-ins are put, and everything is given back
    guard         errors and endless loops of somebody's code

What cannot be followed:

    salted        real random numbers, others in each text
    drawn         texts are drawn, and counted

The words, beside those of speculative/law:

    case          a pair of random models, with N and K
    line          of cases: the same lengths and the same kind, but different models
    interface     how a model takes a text, and what it returns
    form          the parameters by which a function is recognised
    decoder       decode(draft, target, case, rng) -> the tokens after the prompt
    sampler       somebody's function, as the decoders that its form allows
    salt          the number of a text that is drawn, which is mixed into every seed
    left out      what a sampler cannot do, as a vocabulary, and the check does without; the verdict says so
"""
