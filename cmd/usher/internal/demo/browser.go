package demo

import (
	"os/exec"
	"runtime"
)

// openBrowser opens url where there is a desktop to open it on. It is a
// convenience: where it fails, the address is on the screen.
func openBrowser(url string, getenv func(string) string) {
	var cmd *exec.Cmd
	switch runtime.GOOS {
	case "darwin":
		cmd = exec.Command("open", url)
	case "windows":
		cmd = exec.Command("rundll32", "url.dll,FileProtocolHandler", url)
	default:
		if getenv("DISPLAY") == "" && getenv("WAYLAND_DISPLAY") == "" {
			return
		}
		cmd = exec.Command("xdg-open", url)
	}
	if cmd.Start() == nil {
		go cmd.Wait()
	}
}
