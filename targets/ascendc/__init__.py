"""Ascend 950: a PrimFunc made fit for TileLang's own Ascend backend, which writes AscendC; an emulator of the text."""
