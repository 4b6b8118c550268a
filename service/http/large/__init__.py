"""Large bodies and answers: what they hold, and how they leave the event loop free."""
