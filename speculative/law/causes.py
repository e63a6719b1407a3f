def cause_of(decode, laws, wrong):
    return None
