package provider

import "github.com/nodelet/nodelet/config"

// Settings returns what the providers need of the configuration. The caller adds the rest.
func Settings(c *config.Config) Options {
	return Options{
		Config: c.Providers.Config,
		BinDir: c.Providers.BinDir,
		Tokens: c.Gate("KubeletServiceAccountTokenForCredentialProviders"),
	}
}
