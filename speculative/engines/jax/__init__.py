"""The engine that JAX compiles for whatever device there is: the model, the loop on the device, and sharding."""
