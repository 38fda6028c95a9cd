"""What the papers of docs/guides/papers.md claim, measured: their programs, planners and figures.

`ilp_forms` has OLLA's integer programs for orders, `ilp` and `ilp_steps` compare them;
`placed_orders` finds orders that are easy to place, and `arenas` their arenas in a process. `eager`
has programs that run operator by operator, and MXNet's planners of them; `profile_replay` and
`recordings` are Sekiyama et al.'s profiles; `sublinear_training` has the networks of Chen et al.;
`figures` draws all of them.
"""
