"""Many engines behind the gateway's router, simulated: `hocket simulate --cluster`, `hocket plan --routing`."""
