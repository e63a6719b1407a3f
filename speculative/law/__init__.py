"""The exact law of a program by enumeration, the check of somebody's code, and the statistical checks of --verify."""
