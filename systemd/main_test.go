package systemd

import (
	"testing"

	"github.com/nodelet/nodelet/test/ownmounts"
)

func TestMain(m *testing.M) { ownmounts.Main(m) }
