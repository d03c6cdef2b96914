package usage

import (
	"testing"

	"github.com/nodelet/nodelet/test/ownmounts"
)

// TestMain gives the tests a mount namespace of their own.
func TestMain(m *testing.M) { ownmounts.Main(m) }
