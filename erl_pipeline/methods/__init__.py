"""Methods: how a policy learns from its episodes, one package each."""
