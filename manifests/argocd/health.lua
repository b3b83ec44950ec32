-- How Argo CD sees an object of ours; for each kind in argocd-cm, such as
--   resource.customizations.health.drumlin.dev_Volume: |
--     (this file)
local health = {status = "Progressing", message = "not observed yet"}
local status = obj.status
if status == nil or status.observedGeneration ~= obj.metadata.generation then
  return health
end
for _, condition in ipairs(status.conditions or {}) do
  local said = (condition.reason or "") .. ": " .. (condition.message or "")
  if condition.type == "Stalled" and condition.status == "True" then
    -- It never comes to be ready by itself.
    return {status = "Degraded", message = said}
  end
  if condition.type == "Ready" then
    health.message = said
    if condition.status == "True" then
      health.status = "Healthy"
    elseif condition.status == "Unknown" then
      -- Its node is gone.
      health.status = "Unknown"
    end
  end
end
return health
