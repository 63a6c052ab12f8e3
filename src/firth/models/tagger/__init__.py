"""The bidirectional recurrent tagger, and the conditional random field above any encoder."""
