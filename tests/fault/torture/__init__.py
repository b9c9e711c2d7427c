"""The kill harness: clients of a real ring note all they did and saw while its parts are killed.

`stage` is the ring, with a `proxy` in every link between its parts. `plan` makes a seed into an
endless list of faults, `nemesis` carries them out; `workloads` are clients that write and read,
`audit` looks at the clusters and the log directly. Everything goes into a `history`, one line for
each event, and the `checker` finds in it whatever breaks a promise. `run` puts it together, and
`figures` says what was done. How to read the results: docs/reliability.md.
"""
