"""Training in sublinear memory: segments of a traced function that are recomputed.

Chen, Xu, Zhang and Guestrin, "Training Deep Nets with Sublinear Memory Cost" (2016). `walk` holds
what the planner sees of a program, `budget` the planner, `trace` turns a traced function into a
walk, `allocation` measures what segments take, `transform` is `olla_xla.sublinear`. (The package
cannot be called `sublinear`: the function is `olla_xla`'s attribute of that name.)
"""
