"""The kill harness: clients of a real ring record their calls while its parts are killed.

`stage` is the ring, with a `proxy` in every link between its parts. `plan` makes a seed into an
endless list of faults, `nemesis` injects them; `workloads` are clients that write and read,
`audit` reads the clusters and the log directly. Everything goes into a `history`, one line for
each event, and the `checker` finds every broken promise in it. `run` connects the parts, and
`figures` counts the calls and faults. How to read the results: docs/reliability.md.
"""
