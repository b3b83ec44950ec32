# The same plugin as in plugin.nomad.hcl, without Docker: the agent of the host's own package.
#
#   nomad job run examples/nomad/plugin-raw-exec.nomad.hcl
#
# The clients' own configuration must allow the driver:
#
#   plugin "raw_exec" {
#     config {
#       enabled = true
#     }
#   }
job "drumlin-node-a" {
  type = "system"

  constraint {
    attribute = "${node.unique.name}"
    value     = "node-a"
  }

  group "agent" {
    task "agent" {
      driver = "raw_exec"

      # Nomad says by CSI_ENDPOINT where it looks for the socket.
      config {
        command = "/usr/bin/drumlin"
        args = [
          "agent",
          "--node=node-a",
          "--state-dir=/var/lib/drumlin",
        ]
      }

      csi_plugin {
        id   = "drumlin-node-a"
        type = "monolith"
        # Without a container, what Nomad names in its calls is what it would be mounted at in one: here the client's own
        # directory, DATA_DIR/client/csi/monolith/ID.
        stage_publish_base_dir = "/opt/nomad/data/client/csi/monolith/drumlin-node-a"
        health_timeout         = "30s"
      }

      # Changes that run may end.
      kill_timeout = "15s"

      resources {
        cpu    = 100
        memory = 256
      }
    }
  }
}
