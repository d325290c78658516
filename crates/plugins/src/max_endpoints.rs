use serde::{Deserialize, Serialize};
use sluice_config::BuildContext;

/// What pickers can be told.
#[derive(Debug, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct PickerParams {
    /// How many endpoints to name, the ones after the first being for retries; 1 if less.
    max_num_of_endpoints: i64,
}

impl Default for PickerParams {
    fn default() -> Self {
        Self { max_num_of_endpoints: 1 }
    }
}

impl PickerParams {
    /// At least 1.
    pub(crate) fn max_endpoints(&self, cx: &mut BuildContext<'_>) -> usize {
        match usize::try_from(self.max_num_of_endpoints) {
            Ok(number) if number > 0 => number,
            _ => {
                cx.warn("maxNumOfEndpoints", format!("{} is less than 1, taken as 1", self.max_num_of_endpoints));
                cx.fill_in("maxNumOfEndpoints", 1);
                1
            }
        }
    }
}
