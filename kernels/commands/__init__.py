"""The commands of ``monotile``, one module each: ``add(commands)`` describes it, its ``run`` does it."""
