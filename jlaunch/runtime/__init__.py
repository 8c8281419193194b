"""Who owns a loop: the supervisor, the agent, the guardian, and the bootstrap inside a rank."""
