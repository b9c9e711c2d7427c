"""The blocking client; all but the transport is written from `haclient.aio`."""
