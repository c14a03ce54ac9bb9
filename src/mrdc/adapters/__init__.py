"""Byte-bounded, compressed replay in other frameworks; each adapter imports its own."""
