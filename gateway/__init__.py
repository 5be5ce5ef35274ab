"""The HTTP edge: the OpenAI API on one side, token ids to the scheduler on the other. All text lives here."""
