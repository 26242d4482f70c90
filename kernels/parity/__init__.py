"""Parity: the same calls on two devices, and how far their results may be apart.

    cases         what is called: one registry for op tests, goldens and the command line
    draw          inputs, the same bits on every machine
    tolerances    the one table of bounds, with reasons
    difference    two results under a bound
    bundle        results of all cases in one file, with where they come from
    report        a comparison of two bundles as text, JSON and HTML

On a machine with a GPU ``monotile parity record`` writes a bundle; on one with an NPU ``monotile parity compare`` holds
its results against it.
"""
