"""Which node of a fleet serves a request: one pure function, for the gateway and for the simulator. docs/routing.md."""
