"""Load on a server over HTTP, and the speed of the engine alone."""
