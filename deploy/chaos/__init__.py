"""`augury chaos`: the services as processes that are killed, hung, drained and scaled under a load of streams."""
