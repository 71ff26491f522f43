"""The definition of a service (its command graph), from JSON to records. Nothing here does I/O.

bytes -> document.load -> keys.build -> model.Graph
model.Command -> resolve.resolve -> model.ResolvedCommand, when the command is about to run
"""
