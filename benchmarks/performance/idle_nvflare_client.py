"""A client of NVFlare's client API that sends back what it got."""

import nvflare.client as flare

flare.init()
while flare.is_running():
    model = flare.receive()
    if model is not None:
        flare.send(flare.FLModel(params=model.params, meta={"NUM_STEPS_CURRENT_ROUND": 1}))
